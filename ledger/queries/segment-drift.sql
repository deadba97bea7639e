-- segment-drift: What changed from one segment to the next: build, host, driver?
-- params: :run run
-- needs: SELECT count(*) > 1 FROM segment WHERE run = :run
-- or: the run has one segment: it was never resumed
-- SPDX-License-Identifier: Apache-2.0
WITH side AS ( -- each fact once as its own segment's, once as the one before the next
  SELECT seg, scope, key, value AS value_new, NULL AS value_old FROM fact
  WHERE run = :run AND seg > 0
  UNION ALL
  SELECT seg + 1, scope, key, NULL, value FROM fact
  WHERE run = :run AND seg + 1 IN (SELECT seg FROM segment WHERE run = :run))
SELECT seg, scope, key, max(value_old) AS value_before, max(value_new) AS value
FROM side
GROUP BY seg, scope, key HAVING value_before IS NOT max(value_new)
ORDER BY seg, scope, key;
