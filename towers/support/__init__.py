"""What the idea leans on: checks of what a program hands over, and TensorFlow's quiet import."""
