-- restore-points: From which complete checkpoints can the run resume, newest first?
-- params: :run run
-- needs: SELECT count(*) FROM checkpoint WHERE run = :run
-- or: the run has no checkpoint; save-interval makes some
-- SPDX-License-Identifier: Apache-2.0
SELECT k.step, k.path, max(k.bytes) AS bytes, lower(hex(k.hash)) AS hash, count(*) AS times_made
FROM checkpoint k
JOIN timeline t ON t.run = k.run AND t.step = k.step AND t.chain = lower(hex(k.chain))
WHERE k.run = :run AND k.state = 'complete'
GROUP BY k.step, k.path, k.hash ORDER BY k.step DESC, k.path, k.hash;
