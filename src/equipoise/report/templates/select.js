"use strict";
// Which step of a trace is chosen: the rule of equipoise.methods.selection.select, on the same numbers.
// Of equals the first is taken. Returns its position, and whether it meets the goal.
function select(gap, performance, min_performance, max_gap) {
  const size = gap.map(Math.abs);
  const first = (allowed, better) => {
    let best = -1;
    for (let i = 0; i < size.length; i++) {
      if (allowed(i) && (best < 0 || better(i, best))) best = i;
    }
    return best;
  };
  const smaller = (i, j) => size[i] < size[j];
  const higher = (i, j) => performance[i] > performance[j];
  if (min_performance === null) {
    const row = first((i) => size[i] <= max_gap, higher);
    return row >= 0 ? { row, met: true } : { row: first(() => true, smaller), met: false };
  }
  const row = first((i) => performance[i] >= min_performance, smaller);
  if (row < 0) return { row: first(() => true, higher), met: false };
  return { row, met: max_gap === null || size[row] <= max_gap };
}
