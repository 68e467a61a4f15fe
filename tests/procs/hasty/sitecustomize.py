"""What Python imports before a script that `hasty_script.py` gave its environment: its garbage is collected rarely, and not at its exit."""

import atexit
import gc

gc.set_threshold(50_000, 10, 100)
atexit.register(gc.freeze)  # registered first, so it runs last
