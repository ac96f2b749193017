"""What the experiments that classify photographs share; nothing is registered here."""
