-- triage-off-policy: Were samples too old for the weights that learnt from them?
-- params: :run run, :window integer = 5, :kl number = 0.1, :clipped number = 0.3, :ess number = 0.3
-- means: samples are too old, too many steps a rollout, or the rollout's format is too coarse
-- next: ledger query metric-summary --run RUN
-- needs: SELECT count(DISTINCT step) > 4 FROM metrics WHERE run = :run
--   AND name IN ('train/train_rollout_kl', 'train/pg_clipfrac', 'train/ess_ratio')
-- or: train/train_rollout_kl, train/pg_clipfrac or train/ess_ratio of 5 steps
-- SPDX-License-Identifier: Apache-2.0
WITH row AS (
  SELECT step, max(CASE WHEN name = 'train/train_rollout_kl' THEN value END) AS kl,
         max(CASE WHEN name = 'train/pg_clipfrac' THEN value END) AS clipped,
         min(CASE WHEN name = 'train/ess_ratio' THEN value END) AS ess
  FROM metrics WHERE run = :run GROUP BY step),
smooth AS (
  SELECT step, avg(kl) OVER here AS kl, avg(clipped) OVER here AS clipped, avg(ess) OVER here AS
         ess, count(*) OVER here AS known
  FROM row
  WINDOW here AS (ORDER BY step ROWS BETWEEN :window - 1 PRECEDING AND CURRENT ROW))
SELECT step, printf('mean of %d steps: KL of rollout and training %s, clipped tokens %s, effective '
                    || 'samples %s', :window, coalesce(printf('%.3g', kl), '-'),
                    coalesce(printf('%.0f %%', 100 * clipped), '-'),
                    coalesce(printf('%.0f %%', 100 * ess), '-')) AS evidence,
       iif(EXISTS (SELECT 1 FROM samples WHERE run = :run), 'ledger query staleness --run RUN',
           'ledger query metric-summary --run RUN') AS next
FROM smooth
WHERE known = :window AND (kl > :kl OR clipped > :clipped OR ess < :ess)
ORDER BY step;
