-- checkpoint-verify: Which checkpoints do not contain the step that they claim to contain?
-- params: :run run
-- needs: SELECT count(*) FROM checkpoint WHERE run = :run
-- or: the run has no checkpoint; save-interval makes some
-- SPDX-License-Identifier: Apache-2.0
SELECT k.step, k.seg, k.state, k.path, lower(hex(k.hash)) AS hash,
       CASE WHEN s.run IS NULL THEN 'no such step' ELSE 'another chain' END AS wrong,
       lower(hex(k.chain)) AS chain_of_checkpoint, lower(hex(s.chain)) AS chain_of_step
FROM checkpoint k
LEFT JOIN step s ON s.run = k.run AND s.step = k.step AND s.seg =
  (SELECT max(t.seg) FROM step t WHERE t.run = k.run AND t.step = k.step AND t.seg <= k.seg)
WHERE k.run = :run AND k.chain IS NOT s.chain
ORDER BY k.entry;
