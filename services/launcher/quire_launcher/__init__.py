"""The quire command: starts, supervises and talks to the whole suite on one machine; serves nothing itself."""
