"""What tests of workflows need: private databases, and a network that breaks when it is told to."""
