"""Workers whose accelerator is emulated by a sleep, with numpy alone: what W7's workers and W8 are made of.

delays.py   how long the accelerator of each rank takes, step by step, with and without stragglers
batches.py  the ids that each rank pulls and pushes
due.py      what the rows must be in the end, to the bit
worker.py   the process: pull, sleep, push, with the next pull and the last push under way meanwhile
ran.py      what came of it
job.py      a server and so many of them, told what to do and checked
"""
