-- triage-not-finite: Where was the first NaN or infinity?
-- params: :run run
-- means: a number has left its format: activations in fp8, a division by 0, lr too high
-- next: ledger query metric-summary --run RUN
-- needs: SELECT count(*) FROM metrics WHERE run = :run
-- or: a step
-- SPDX-License-Identifier: Apache-2.0
WITH odd AS (
  SELECT step, 0 AS place, message AS what FROM event WHERE run = :run AND kind = 'not-finite'
  UNION ALL -- where no tensor was looked at, what the failure says
  SELECT step, 3, message FROM event
  WHERE run = :run AND kind = 'failure' AND message LIKE '%not finite%'
  UNION ALL
  SELECT t.step, 1, printf('%s has %d NaN and %d infinities', p.name, t.nans, t.infs)
  FROM stat t
  JOIN digest d ON d.run = t.run AND d.step = t.step AND d.seg = t.seg AND d.rank = 0
  JOIN point p ON p.manifest = d.manifest AND p.ord = t.ord
  WHERE t.run = :run AND (t.nans > 0 OR t.infs > 0)
  UNION ALL
  SELECT step, 2, name || iif(value IS NULL, ' is NaN', ' is infinite') FROM metrics
  WHERE run = :run AND (value IS NULL OR abs(value) > 1.7976931348623157e308))
SELECT step, what AS evidence, CASE
    WHEN place < 2 THEN 'ledger query nan-birth --run RUN' -- it knows points only
    WHEN place = 2 THEN 'ledger query metric-summary --run RUN'
    ELSE 'ledger query last-words --run RUN'
  END AS next
FROM odd ORDER BY step, place, what;
