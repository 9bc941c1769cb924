"""Writing tables: commits from Python, and the data files behind them."""
