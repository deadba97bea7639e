-- triage-grad-norm: Did the norm of the gradient vanish, jump, or live on clipping?
-- params: :run run, :factor number = 10, :window integer = 20
-- means: 0: no reward tells samples apart, or nothing is trained; a jump: lr, a bad batch
-- next: ledger query metric-jump --run RUN --metric train/grad_norm
-- SPDX-License-Identifier: Apache-2.0
WITH norm AS (
  SELECT m.step, m.value, max(m.value) OVER before AS highest, max(m.value) OVER here AS recent,
         min(m.value) OVER here AS least, count(*) OVER before AS known,
         (SELECT CAST(value AS REAL) FROM identity WHERE run = :run AND key = 'clip-grad') AS clip
  FROM metrics m WHERE m.run = :run AND m.name = 'train/grad_norm'
  WINDOW before AS (ORDER BY m.step ROWS BETWEEN :window PRECEDING AND 1 PRECEDING),
         here AS (ORDER BY m.step ROWS BETWEEN :window - 1 PRECEDING AND CURRENT ROW))
SELECT step, CASE
    WHEN recent = 0 THEN printf('it is 0 for %d steps', known + 1)
    WHEN value > :factor * highest THEN printf('it is %.3g; in the %d steps before at most %.3g',
                                               value, known, highest)
    ELSE printf('for %d steps it is at least %.3g, and cut down to %.3g', known, least, clip)
  END AS evidence
FROM norm
WHERE recent = 0 AND known >= 2
   OR known >= 5 AND value > :factor * highest AND value > :factor * coalesce(clip, 0)
      AND highest > 0
   OR known = :window AND clip > 0 AND least > :factor * clip
ORDER BY step;
