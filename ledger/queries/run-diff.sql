-- run-diff: What differs between two runs: configuration, build, host, GPU, free keys?
-- params: :a run, :b run
-- SPDX-License-Identifier: Apache-2.0
WITH pairs AS (
  SELECT run, 'identity' AS scope, key, value FROM identity WHERE run IN (:a, :b)
  UNION ALL
  SELECT run, scope, key, value FROM fact WHERE run IN (:a, :b) AND seg = 0)
SELECT scope, key, max(CASE WHEN run = :a THEN value END) AS value_a,
       max(CASE WHEN run = :b THEN value END) AS value_b
FROM pairs
GROUP BY scope, key HAVING value_a IS NOT value_b ORDER BY scope <> 'identity', scope, key;
