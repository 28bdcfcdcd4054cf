"""Workers: who executes runs, how they say that they live, and how their death is proven."""
