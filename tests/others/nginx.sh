#!/bin/bash
mkdir -p site logs
chmod 755 site
seq 200000 >site/numbers
cat >nginx.conf <<EOF
user www-data;
worker_processes 2;
daemon off;
pid $HERE/nginx.pid;
error_log stderr error;
events { worker_connections 64; }
http {
    access_log off;
    gzip on;
    gzip_types text/plain;
    default_type text/plain;
    client_body_temp_path $HERE/logs/body;
    proxy_temp_path $HERE/logs/proxy;
    fastcgi_temp_path $HERE/logs/fastcgi;
    uwsgi_temp_path $HERE/logs/uwsgi;
    scgi_temp_path $HERE/logs/scgi;
    server { listen 127.0.0.1:8080; root $HERE/site; }
}
EOF
begin "$DEBS/nginx/usr/sbin/nginx" -p "$HERE" -c "$HERE/nginx.conf" -e stderr
eventually bash -c ': </dev/tcp/127.0.0.1/8080'
fetch() {
    python3 -c '
import hashlib, urllib.request
for encoding in "identity", "gzip":
    ask = urllib.request.Request("http://127.0.0.1:8080/numbers", headers={"Accept-Encoding": encoding})
    print(encoding, hashlib.md5(urllib.request.urlopen(ask).read()).hexdigest())
'
}
fetch
workers() { pgrep -P "$pid" | sort -n; }
for worker in $(workers); do
    ids "$worker"
    served "$worker"
done
served "$pid"
# New workers, and the old ones go.
before=$(workers)
kill -HUP "$pid"
changed() { local now; now=$(workers); [ "$(wc -w <<<"$now")" = 2 ] && ! grep -qxF "$before" <<<"$now"; }
eventually changed
fetch
kill -QUIT "$pid"
wait "$pid" || echo "exit $?"
