"""Bias score: the best attribute-blind rule, u(x) - sum over gaps of lambda_k g_k(x) > 0, with probes on a frozen network for u and g.

Performance and gaps are affine in the decisions. Given x, a positive decision adds u(x) to performance and g_k(x) to gap k: u(x) is the
expected weight of a row in the performance (for balanced accuracy P(1|x) / 2 pi_1 - P(0|x) / 2 pi_0), and g_k(x) its expected weight in the
gap, P(label|x) (P(k|x, label) / P(k, label) - P(ref|x, label) / P(ref, label)) for each rate of the measure. The rule of best performance
with all gaps within a bound is a threshold on u - lambda g (Menon and Williamson 2018 for two groups; OxonFair searches a grid of
multipliers instead, which grows as a power of the number of groups). Here:

- P(label|x) is a logistic regression on the features and the network's logit, which is hardly penalised: with little data it is the
  recalibrated network (Platt), with more data it also corrects the network where groups differ. P(group|x, label) is a multinomial
  regression on the features of the rows with the label. If these are few, probes of all rows, or with the training set added, are fitted
  too, and the one with the lowest held-out log loss is used. A measure on selection rates needs no label. Penalties are chosen by held-out
  log loss.
- Everything is cross-fitted by patient: multipliers, thresholds and the step are chosen on probabilities from models that were not fitted
  to the row. The final probes are fitted on all rows. In the trace, the choice is based on `held_out_gap` and `held_out_performance`;
  `gap` and `performance` are those of the delivered network on the rows that its probes were fitted to.
- The multipliers of any number of gaps come from a linear program (`programs`), for one bound after another from the original gap down to
  zero: these are the steps of the trace. The program bounds the gaps expected from the probabilities plus the difference observed for the
  decisions of the last multipliers, so that a poorly calibrated probe does not leave a gap behind.
- Predictive parity is a quotient; `programs` describes how it becomes a linear program of the same kind.
- For each bound, the threshold is swept on the held-out scores: the best performance within the bound.

The repaired network is an ordinary module (models.heads) and needs no group. For scores without a network, the result is a rule (`rule`).
"""
