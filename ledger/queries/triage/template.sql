-- triage-template: Does a model that was trained before not know how these dialogues go?
-- params: :run run, :steps integer = 3, :unsure number = 2
-- means: prompts are not in the form the model was trained on: chat template, tokenizer, stop ids
-- next: ledger show RUN --step 0
-- needs: SELECT count(*) FROM fact WHERE run = :run AND key = 'hf-checkpoint' AND value <> ''
-- or: a model that was trained before: hf-checkpoint
-- needs: SELECT count(*) FROM identity WHERE run = :run AND key = 'rollout-max-response-len'
-- or: the key rollout-max-response-len
-- needs: SELECT count(*) FROM metrics WHERE run = :run AND name = 'rollout/log_probs' AND step = 0
-- or: rollout/log_probs at step 0
-- SPDX-License-Identifier: Apache-2.0
WITH trained AS (SELECT 1 FROM fact WHERE run = :run AND scope = 'free' AND key = 'hf-checkpoint'
                   AND value <> ''),
limits AS (SELECT CAST(value AS INTEGER) AS tokens FROM identity
           WHERE run = :run AND key = 'rollout-max-response-len'),
early AS (
  SELECT max(step) AS step, count(DISTINCT step) AS steps,
         min(CASE WHEN name = 'rollout/truncated_ratio' THEN value END) AS cut,
         max(CASE WHEN name = 'rollout/log_probs' AND step = 0 THEN value END) AS logp
  FROM metrics WHERE run = :run AND step < :steps)
SELECT iif(logp < -:unsure, 0, step) AS step, CASE
    WHEN logp < -:unsure THEN printf('at step 0 the mean log-prob of a token that the model itself '
                                     || 'drew is %.3g', logp)
    ELSE printf('no response of the first %d steps ended by itself, within %d tokens', steps,
                tokens)
  END AS evidence
FROM early, limits
WHERE EXISTS (SELECT 1 FROM trained) -- of answers in the data the model has drawn nothing
  AND NOT EXISTS (SELECT 1 FROM identity WHERE run = :run AND key = 'loss-type'
                    AND value = 'sft_loss')
  AND (logp < -:unsure OR steps = :steps AND cut >= 1 AND tokens >= 64);
