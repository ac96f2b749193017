"""The parts that classification experiments share; nothing is registered here."""
