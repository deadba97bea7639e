-- triage-logprob-gap: Did training compute other log-probs than the rollout, where both are one?
-- params: :run run
-- means: rollout and training do not share weights or arithmetic: a fault of the program or machine
-- next: replay RUN --step STEP
-- needs: SELECT count(*) FROM samples WHERE run = :run AND (diff IS NOT NULL OR diff_at >= 0)
-- or: samples whose log-probs training has computed again
-- SPDX-License-Identifier: Apache-2.0
WITH apart AS ( -- by declaration: older weights, another format, rollouts from elsewhere
  SELECT 1 FROM identity WHERE run = :run
    AND (key = 'rollout-lag' AND value <> '0' OR key = 'rollout-dtype' AND value <> '')
  UNION ALL
  SELECT 1 FROM fact WHERE run = :run AND scope = 'free' AND key = 'load-debug-rollout-data'
    AND value <> '')
SELECT step, printf('%d of %d samples differ, the worst by %s', count(CASE WHEN diff_at >= 0 THEN 1
                    END), count(*), coalesce(printf('%.3g', max(diff)), 'NaN')) AS evidence
FROM samples -- tokens that the model did not draw are in the hashes, and compared with nothing
WHERE run = :run AND (diff IS NOT NULL OR diff_at >= 0) AND NOT EXISTS (SELECT 1 FROM apart)
GROUP BY step HAVING max(diff_at) >= 0 ORDER BY step;
