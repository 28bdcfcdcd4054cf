"""What tests of workflows need: private databases, and engines that can be crashed on them."""
