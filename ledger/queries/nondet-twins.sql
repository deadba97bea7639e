-- nondet-twins: Which runs had to be identical (same identity, binary and origin) and are not?
-- params: none
-- SPDX-License-Identifier: Apache-2.0
WITH twin AS (
  SELECT r.run, f.value AS binary,
         min(r.run) OVER (PARTITION BY r.identity, f.value, r.parent, r.fork_step) AS other,
         (SELECT max(step) FROM step s WHERE s.run = r.run) AS last_step
  FROM run r
  JOIN fact f ON f.run = r.run AND f.seg = 0 AND f.scope = 'build' AND f.key = 'binary'),
pair AS (
  SELECT x.other AS a, x.run AS b, x.binary, min(x.last_step, y.last_step) AS last_common
  FROM twin x JOIN twin y ON y.run = x.other
  WHERE x.run <> x.other)
SELECT a, b, last_common,
       (SELECT min(x.step) FROM timeline x JOIN timeline y ON y.step = x.step
        WHERE x.run = a AND y.run = b AND x.root <> y.root) AS first_step, binary
FROM pair
WHERE (SELECT chain FROM timeline WHERE run = a AND step = last_common)
   <> (SELECT chain FROM timeline WHERE run = b AND step = last_common)
ORDER BY a, b;
