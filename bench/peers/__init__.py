"""The same digits model behind other servers; started by bench/server.py, one file each."""
