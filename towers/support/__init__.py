"""What everything else leans on, and which leans on nothing itself: checks of what programs hand
over, sums, hashes, the machine, TensorFlow's quiet import.
"""
