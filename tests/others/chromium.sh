#!/bin/bash
# A browser as an ordinary user, with its sandbox: its zygote counts its threads, and closes all
# descriptors that it does not know.
tester=(setpriv --reuid=tester --regid=tester --clear-groups)
page='data:text/html,<p id=sum></p><script>
for (const end = Date.now() + 3000; Date.now() < end;);
const all = new Uint32Array(1 << 22).fill(7);
sum.textContent = all.reduce((a, b) => a + b);
</script>'
browse() {
    HOME=$HERE/home shim "${tester[@]}" chromium --headless --disable-gpu --no-first-run \
        "--user-data-dir=$HERE/home/profile" --dump-dom "$page" 2>errors >result
}
kinds() {
    for process in /proc/[0-9]*; do
        [[ $(readlink "$process/exe") = */chromium ]] || continue
        [ -z "$WITH" ] || grep -q libregall "$process/maps" || echo "without the shim: $process" >&2
        tr '\0' '\n' <"$process/cmdline" | sed -n 's/^--type=//p'
    done | sort -u | grep -E '^(zygote|renderer)$'
}
browse &
browser=$!
for _ in $(seq 60); do
    seen=$(kinds 2>without || true)
    [ "$(wc -l <<<"$seen")" -lt 2 ] || break
    sleep 0.1
done
echo "$seen"
[ ! -s without ] || cat without >&3
wait "$browser" || echo "exit $?"
sed 's/<script>.*//;t;d' result
grep -iE 'sandbox|FATAL|SIG(SEGV|ILL|SYS|ABRT)' errors || true
