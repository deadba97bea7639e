-- policy-of-sample: Which weights made a sample, and which checkpoint can reproduce it?
-- params: :run run, :step integer, :sample integer
-- needs: SELECT count(*) FROM samples WHERE run = :run
-- or: the run has no samples: it has no rollout, or a shortened copy left them out
-- SPDX-License-Identifier: Apache-2.0
WITH made AS (
  SELECT step, idx, prompt, rng, weights_first, weights_last,
         lower(hex(weights_hash)) AS weights_hash, lower(hex(token_hash)) AS token_hash
  FROM samples WHERE run = :run AND step = :step AND idx = :sample),
start AS ( -- the newest one on the timeline that is no newer than those weights
  SELECT c.step, c.path, lower(hex(c.hash)) AS hash
  FROM made m JOIN checkpoint c ON c.run = :run AND c.step < m.step
  WHERE c.state = 'complete'
    AND EXISTS (SELECT 1 FROM timeline t
                WHERE t.run = c.run AND t.step = c.step AND t.chain = lower(hex(c.chain))
                  AND t.weights < m.weights_first)
  ORDER BY c.step DESC, c.entry DESC LIMIT 1)
SELECT m.step, m.idx AS sample, m.prompt, m.rng, m.weights_first, m.weights_last,
       m.weights_hash, m.token_hash, s.step AS checkpoint_step, s.path AS checkpoint,
       s.hash AS checkpoint_hash
FROM made m LEFT JOIN start s;
