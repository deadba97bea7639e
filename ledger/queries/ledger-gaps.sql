-- ledger-gaps: Is anything missing: entries, steps, digests that no shortened copy left out?
-- params: :run run
-- SPDX-License-Identifier: Apache-2.0
SELECT 'entries' AS what, NULL AS seg, n - missing AS first, missing AS count
FROM (SELECT n, n - 1 - lag(n, 1, -1) OVER (ORDER BY n) AS missing FROM entry WHERE run = :run)
WHERE missing > 0
UNION ALL
SELECT 'steps', seg, step - missing, missing
FROM (SELECT s.seg, s.step, s.step - 1 - lag(s.step, 1, g.after_step) OVER
               (PARTITION BY s.seg ORDER BY s.step) AS missing
      FROM step s JOIN segment g ON g.run = s.run AND g.seg = s.seg WHERE s.run = :run)
WHERE missing > 0
UNION ALL
SELECT 'digests', s.seg, min(s.step), count(*)
FROM step s
WHERE s.run = :run
  AND NOT EXISTS (SELECT 1 FROM digest d WHERE d.run = s.run AND d.step = s.step
                    AND d.seg = s.seg AND d.rank = 0)
  AND NOT EXISTS (SELECT 1 FROM pruned p WHERE p.run = s.run AND p.entry = s.entry)
GROUP BY s.seg
ORDER BY what, seg, first;
