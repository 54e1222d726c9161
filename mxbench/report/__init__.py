"""From observations to tables: what is counted, how it is worded, and the formats it is written in.

One way through: `data.TableData` → `tables.build` → `Table`, all numbers and no words → `layout.page` → words, which
`markdown` and `terminal` print. `csv` and `jsonout` write the numbers.
"""
