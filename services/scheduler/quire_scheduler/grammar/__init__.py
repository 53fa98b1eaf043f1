"""Constraints on outputs: compiled beside the loop, followed token by token, turned into masks of tokens.

constraint: what is asked. language, structural_tag: as the compiler's grammar. vocabulary, compiler: matchers, off the
loop, within limits. reasoning, masker: one sequence. masks: one step. service: all of it, as the engine uses it.
"""
