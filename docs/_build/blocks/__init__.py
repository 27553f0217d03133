"""The generated blocks of README and docs, one file per page: a function returns the text of a block, `BLOCKS` names it."""
