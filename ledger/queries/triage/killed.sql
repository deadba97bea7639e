-- triage-killed: Is there no record of the run's end?
-- params: :run run
-- of: runs that no process writes
-- means: kill -9, a lack of memory, a crash or a lost machine ended it, which no ledger can tell; the
--   command that began the run resumes it
-- next: ledger query last-words --run RUN
-- SPDX-License-Identifier: Apache-2.0
WITH last AS (
  SELECT seg FROM segment WHERE run = :run
    AND seg = (SELECT max(seg) FROM segment WHERE run = :run)
    AND seg NOT IN (SELECT seg FROM finish WHERE run = :run)),
saved AS (
  SELECT max(k.step) AS step FROM checkpoint k
  JOIN timeline t ON t.run = k.run AND t.step = k.step AND t.chain = lower(hex(k.chain))
  WHERE k.run = :run AND k.state = 'complete'),
done AS (SELECT max(step) AS step FROM step JOIN last USING(seg) WHERE run = :run)
SELECT coalesce(done.step, (SELECT max(step) FROM step WHERE run = :run), 0) AS step,
       printf('segment %d has no end: %s; %s', seg,
              coalesce('its last step is ' || done.step, 'it has no step'),
              coalesce('the newest checkpoint is that of step ' || saved.step,
                       'the run has no checkpoint')) AS evidence
FROM last, saved, done;
