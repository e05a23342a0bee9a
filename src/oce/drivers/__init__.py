"""The bundled Drivers, one room per vendor, independent of each other."""
