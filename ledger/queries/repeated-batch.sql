-- repeated-batch: Was a training batch fed twice?
-- params: :run run
-- needs: SELECT count(*) FROM step WHERE run = :run
-- or: the run has no step yet
-- SPDX-License-Identifier: Apache-2.0
SELECT step, same_as_step, batch
FROM (SELECT step, batch, lag(step) OVER (PARTITION BY batch ORDER BY step) AS same_as_step
      FROM timeline WHERE run = :run AND ltrim(batch, '0') <> '')
WHERE same_as_step IS NOT NULL ORDER BY step;
