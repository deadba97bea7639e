-- last-words: What were the last events before each end of a run?
-- params: :run run, :count integer = 3
-- SPDX-License-Identifier: Apache-2.0
WITH numbered AS (
  SELECT *, row_number() OVER (PARTITION BY seg ORDER BY entry DESC, i DESC) AS back
  FROM event WHERE run = :run),
done AS (SELECT seg, max(step) AS last_step FROM step WHERE run = :run GROUP BY seg)
SELECT g.seg, d.last_step, coalesce(f.reason, 'no orderly end') AS reason, f.exit_code,
       n.step, n.level, n.kind, n.message
FROM segment g
LEFT JOIN finish f ON f.run = g.run AND f.seg = g.seg
LEFT JOIN done d ON d.seg = g.seg
LEFT JOIN numbered n ON n.seg = g.seg AND n.back <= :count
WHERE g.run = :run
ORDER BY g.seg, n.entry, n.i;
