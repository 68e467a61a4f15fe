"""What a worker needs to go on after a restart, and how it gets there again (R15).

packing.py    plain values, arrays and tensors as bytes, and back; no pickle
tensors.py    numpy's arrays and torch's tensors in them
rngs.py       the random generators that a script has without asking
registry.py   the objects that it registers; gradients.py which gradients its optimizers have
position.py   where it stands in its passes over data and its loops over steps
replay.py     its way from its top to that place, on which nothing is done twice
resumption.py all of it: what a session captures at each step
"""
