-- checkpoint-pending: Which checkpoints were announced and never completed?
-- params: :run run
-- needs: SELECT count(*) FROM checkpoint WHERE run = :run
-- or: the run has no checkpoint; save-interval makes some
-- SPDX-License-Identifier: Apache-2.0
SELECT k.step, k.seg, k.path, k.bytes, lower(hex(k.hash)) AS hash
FROM checkpoint k
WHERE k.run = :run AND k.state = 'intent'
  AND NOT EXISTS (SELECT 1 FROM checkpoint c
                  WHERE c.run = k.run AND c.step = k.step AND c.state = 'complete'
                    AND c.path = k.path AND c.entry > k.entry)
ORDER BY k.entry;
