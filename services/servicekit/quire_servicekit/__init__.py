"""What every Quire service shares; it knows no domain word and imports neither torch nor a contract."""
