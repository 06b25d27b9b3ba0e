"""Speed, measured. Figures belong to the machine that gave them; ratios against others in the same run count.

`python -m benchmarks` measures; `adapters/` holds one file per system, `metrics/` one per figure. See docs/topics/benchmarks.md.
"""
