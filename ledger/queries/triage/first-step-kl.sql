-- triage-first-step-kl: Were actor and reference different models at the first step?
-- params: :run run, :apart number = 1
-- means: the reference is not the model that is trained: another folder, format or chat template
-- next: ledger show RUN --step 0
-- needs: SELECT count(*) FROM metrics WHERE run = :run AND step = 0
--   AND name = 'rollout/log_probs'
-- or: rollout/log_probs at step 0
-- needs: SELECT count(*) FROM metrics WHERE run = :run AND step = 0
--   AND name = 'rollout/ref_log_probs'
-- or: rollout/ref_log_probs at step 0: a reference
-- SPDX-License-Identifier: Apache-2.0
WITH mean AS (
  SELECT max(CASE WHEN name = 'rollout/log_probs' THEN value END) AS actor,
         max(CASE WHEN name = 'rollout/ref_log_probs' THEN value END) AS reference
  FROM metrics WHERE run = :run AND step = 0),
own AS ( -- a reference with a folder of its own may be another model
  SELECT EXISTS (SELECT 1 FROM fact WHERE run = :run AND scope = 'free' AND key = 'ref-load'
                   AND value <> '') AS folder)
SELECT 0 AS step, printf('mean log-prob of a token: actor %.6g, reference %.6g%s', actor, reference,
       iif(folder, '', '; they begin as one model, and must be equal')) AS evidence
FROM mean, own
WHERE abs(actor - reference) > iif(folder, :apart, 0);
