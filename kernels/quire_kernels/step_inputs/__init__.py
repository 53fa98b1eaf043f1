"""A step's inputs, made on the device from the slots' tables and one packed buffer."""
