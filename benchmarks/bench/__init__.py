"""``make bench``: what the server makes of this machine, beside what the machine allows.

``limits`` says what it allows and ``machine`` measures it; ``workloads`` are the rows of the table, and ``bars`` what
they are to reach; ``servers`` are what is measured; ``rounds`` does it in turn; ``report`` says what came of it.
"""
