-- triage-failure: Did the run end by a failure?
-- params: :run run
-- means: what the message says; findings of the steps before it are more likely the cause
-- next: ledger query last-words --run RUN
-- needs: SELECT count(*) FROM finish WHERE run = :run
-- or: an end: the run goes on, or was killed
-- SPDX-License-Identifier: Apache-2.0
WITH last AS ( -- a failure from which the run has gone on is none any more
  SELECT f.* FROM finish f JOIN run r USING(run)
  WHERE f.run = :run AND f.seg = (SELECT max(seg) FROM segment WHERE run = :run)
    AND r.kind NOT IN ('ci', 'bisect', 'ab') -- their exit code is a verdict
    AND f.exit_code <> 0 AND f.reason NOT IN ('stopped', 'interrupted')),
said AS (
  SELECT step, message FROM event JOIN last USING(run, seg) WHERE kind = 'failure'
  ORDER BY event.entry DESC, i DESC LIMIT 1)
SELECT coalesce((SELECT step FROM said), (SELECT max(step) + 1 FROM step WHERE run = :run), 0)
       AS step, printf('exit code %d: %s', exit_code, coalesce((SELECT message FROM said), reason))
       AS evidence
FROM last;
