"""The parts that photo classification experiments share; nothing is registered here."""
