-- rng-reuse: Were random coordinates used twice, by steps or by samples?
-- params: :run run
-- needs: SELECT count(*) FROM step WHERE run = :run
-- or: the run has no step yet
-- SPDX-License-Identifier: Apache-2.0
SELECT 'step' AS what, step, NULL AS sample, same_as_step, NULL AS same_as_sample, rng
FROM (SELECT step, rng, lag(step) OVER (PARTITION BY rng ORDER BY step) AS same_as_step
      FROM timeline WHERE run = :run AND ltrim(rng, '0') <> '')
WHERE same_as_step IS NOT NULL
UNION ALL
SELECT 'sample', step, idx, same_as_step, same_as_sample, rng
FROM (SELECT step, idx, rng, lag(step) OVER same AS same_as_step,
             lag(idx) OVER same AS same_as_sample
      FROM samples WHERE run = :run
      WINDOW same AS (PARTITION BY rng ORDER BY step, idx))
WHERE same_as_step IS NOT NULL
ORDER BY step, what DESC, sample;
