-- triage-template: Does a pretrained model find its own samples unlikely, or never end one?
-- params: :run run, :steps integer = 3, :unsure number = 2
-- means: weights, tokenizer, chat template or temperature are not those that the model was trained
--   with, or there are many good answers: the number alone cannot tell
-- next: ledger report RUN --out triage.html
-- cause: weights: excluded if the model continues a plain text sensibly
-- check: generate --hf-checkpoint MODEL --prompt 'The capital of France is' --rollout-temperature 0
-- cause: tokenizer: excluded if "tokens" begins with the ids that AutoTokenizer has for the prompt
-- check: generate --hf-checkpoint MODEL --prompt 'The capital of France is' --json
-- cause: chat template: excluded if prompts of the page's samples are what apply_chat_template gives
-- check: ledger report RUN --out triage.html
-- cause: temperature: excluded if the value is 1 or "temperature" of generation_config.json
-- check: ledger sql "SELECT run, value FROM identity WHERE key = 'rollout-temperature'" RUN
-- cause: length limit: confirmed if "finish" becomes "stop" with more tokens
-- check: generate --hf-checkpoint MODEL --prompt 'The capital of France is' --json
--   --rollout-max-response-len 1024
-- needs: SELECT count(*) FROM fact WHERE run = :run AND key = 'hf-checkpoint' AND value <> ''
-- or: a model that was trained before: hf-checkpoint
-- needs: SELECT count(*) FROM identity WHERE run = :run AND key = 'rollout-max-response-len'
-- or: the key rollout-max-response-len
-- needs: SELECT count(*) FROM metrics WHERE run = :run AND name = 'rollout/log_probs' AND step = 0
-- or: rollout/log_probs at step 0
-- SPDX-License-Identifier: Apache-2.0
WITH key AS (SELECT max(CASE WHEN key = 'rollout-temperature' THEN value END) AS temperature,
                max(CASE WHEN key = 'apply-chat-template' THEN value END) AS template
             FROM identity WHERE run = :run),
trained AS (SELECT 1 FROM fact WHERE run = :run AND scope = 'free' AND key = 'hf-checkpoint'
                   AND value <> ''),
limits AS (SELECT CAST(value AS INTEGER) AS tokens FROM identity
           WHERE run = :run AND key = 'rollout-max-response-len'),
early AS (
  SELECT max(step) AS step, count(DISTINCT step) AS steps,
         min(CASE WHEN name = 'rollout/truncated_ratio' THEN value END) AS cut,
         max(CASE WHEN name = 'rollout/log_probs' AND step = 0 THEN value END) AS logp
  FROM metrics WHERE run = :run AND step < :steps)
SELECT iif(logp < -:unsure, 0, step) AS step, CASE
    WHEN logp < -:unsure THEN printf('the mean log-prob of the tokens that the model itself drew '
      || 'is %.3g%s', logp, said)
    ELSE printf('no response of the first %d steps ended by itself, within %d tokens%s', steps,
                tokens, said)
  END AS evidence
FROM early, limits, (
  SELECT iif(temperature IS NULL, '', printf(', at temperature %s, %s a chat template', temperature,
             iif(template = 'true', 'with', 'without'))) AS said FROM key)
WHERE EXISTS (SELECT 1 FROM trained) -- of answers in the data the model has drawn nothing
  AND NOT EXISTS (SELECT 1 FROM identity WHERE run = :run AND key = 'loss-type'
                    AND value = 'sft_loss')
  AND (logp < -:unsure OR steps = :steps AND cut >= 1 AND tokens >= 64);
