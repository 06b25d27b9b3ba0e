"""Floor 4: the database side. The outbox writes rows before Redis knows them; the mirror writes down what Redis did; the relay pushes
what Redis does not have; prune deletes what is old.
"""
