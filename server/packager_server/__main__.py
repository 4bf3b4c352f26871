"""`python -m packager_server`."""

import sys

from packager_server.server import main

if __name__ == "__main__":
    sys.exit(main())
