//! A Slurm of a test's own, of Debian's unmodified daemons: two nodes on this host, each with a
//! name, processes and a /dev/shm of its own (namespaces), and a controller, on ports of the
//! loopback that nobody else has. What there is of it is in one folder, which is the shared file
//! system, too; all of it ends with the test, however that ends.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::child::{self, Outcome, Running};
use crate::installed::{done, make};
use crate::mode::Mode;
use crate::{procfs, skip};

/// The nodes' names.
pub const NODES: [&str; 2] = ["node1", "node2"];

const DAEMONS: &[&str] = &["munged", "slurmctld", "slurmd"];
/// So long it may take to be there; on an idle machine it takes 2 s.
const PATIENCE: Duration = Duration::from_secs(90);
const TIMEOUT: Duration = Duration::from_secs(120);

/// What a node has of its own. slurmd looks itself up by its name.
const NODE: &str = "set -e
ulimit -S -l $(ulimit -H -l)
hostname \"$1\"
mount -t tmpfs node /dev/shm
mount --bind hosts /etc/hosts
slurmd -D -N \"$1\" -f \"$PWD/slurm.conf\" &
wait
";

/// A cluster, gone when this is dropped.
pub struct Cluster {
    folder: tempfile::TempDir,
    // Ends before the folder does.
    daemons: Vec<std::process::Child>,
}

impl Cluster {
    /// Starts one, with lines of slurm.conf; `@PREFIX@` there is where what is under test is
    /// installed. None, and says so, if this machine can't have one.
    pub fn start(settings: &str) -> Option<Self> {
        for name in DAEMONS {
            if !Path::new("/usr/sbin").join(name).exists() {
                skip(&format!("{name} is not installed"));
                return None;
            }
        }
        let allowed = namespace()
            .args(["mount", "-t", "tmpfs", "try", "/dev/shm"])
            .output();
        if !allowed.is_ok_and(|out| out.status.success()) {
            skip("namespaces are not allowed here");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("regall-slurm-").tempdir();
        let mut this = Self {
            folder: folder.expect("a folder"),
            daemons: Vec::new(),
        };
        this.write(settings);
        make("install", &this.prefix(), Path::new(""));
        this.start_daemons();
        Some(this)
    }

    /// What all nodes see.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where what is under test is installed.
    pub fn prefix(&self) -> PathBuf {
        self.folder().join("opt/regall")
    }

    /// The library there.
    pub fn shim(&self) -> PathBuf {
        self.prefix().join("lib/libregall.so")
    }

    fn write(&self, settings: &str) {
        let at = |name: &str| self.folder().join(name);
        let mode = |path: &Path, bits| {
            let bits = std::fs::Permissions::from_mode(bits);
            std::fs::set_permissions(path, bits).expect("permissions");
        };
        // munged wants its socket to be within everybody's reach.
        mode(self.folder(), 0o755);
        for name in ["state", "node1", "node2", "tmp-node1", "tmp-node2", "out"] {
            std::fs::create_dir(at(name)).expect("a folder");
        }
        for name in ["tmp-node1", "tmp-node2", "out"] {
            mode(&at(name), 0o1777);
        }
        let key = done(
            Command::new("head")
                .args(["-c", "96", "/dev/urandom"])
                .stdin(Stdio::null()),
        );
        std::fs::write(at("munge.key"), key).expect("a key");
        mode(&at("munge.key"), 0o400);
        std::fs::write(at("hosts"), "127.0.0.1 localhost node1 node2\n").expect("a file");
        std::fs::write(at("cgroup.conf"), "CgroupAutomount=no\n").expect("a file");
        // All at once, so that they differ.
        let ports: Vec<_> = (0..3)
            .map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"))
            .collect();
        let ports: Vec<_> = ports
            .iter()
            .map(|p| p.local_addr().expect("a port").port())
            .collect();
        let user = done(Command::new("id").arg("-un"));
        let text = [COMMON, CONFIGURATION]
            .concat()
            .replace("@USER@", user.trim())
            .replace("@PORT0@", &ports[0].to_string())
            .replace("@PORT1@", &ports[1].to_string())
            .replace("@PORT2@", &ports[2].to_string())
            + settings;
        let text = text
            .replace("@FOLDER@", &self.folder().display().to_string())
            .replace("@PREFIX@", &self.prefix().display().to_string());
        std::fs::write(at("slurm.conf"), text).expect("a file");
    }

    fn start_daemons(&mut self) {
        let mut munged = mortal(Command::new("munged"));
        munged.args(["--foreground", "--key-file=munge.key", "--num-threads=10"]);
        for what in ["socket", "pid-file", "log-file", "seed-file"] {
            let path = self.folder().join("munge.").display().to_string();
            munged.arg(format!("--{what}={path}{what}"));
        }
        self.daemon(munged, "munged");
        let mut controller = mortal(Command::new("slurmctld"));
        controller.args(["-D", "-i", "-f"]);
        controller.arg(self.folder().join("slurm.conf"));
        self.daemon(controller, "slurmctld");
        for node in NODES {
            let mut namespace = namespace();
            namespace.args(["sh", "-c", NODE, "sh", node]);
            self.daemon(namespace, node);
        }
        let began = Instant::now();
        loop {
            let idle = self.run(&["sinfo", "-h", "-t", "idle", "-o", "%D"]);
            if idle.stdout.trim() == NODES.len().to_string() {
                return;
            }
            let ended = self
                .daemons
                .iter_mut()
                .any(|d| !matches!(d.try_wait(), Ok(None)));
            let late = ended || began.elapsed() > PATIENCE;
            assert!(!late, "no Slurm: {}{}", idle.stderr, self.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn daemon(&mut self, mut command: Command, name: &str) {
        let log = std::fs::File::create(self.folder().join(format!("{name}.out")));
        let log = log.expect("a file");
        command
            .current_dir(self.folder())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log);
        Mode::Plain.apply(&mut command);
        command.env_remove("LD_PRELOAD");
        let started = command.spawn();
        self.daemons
            .push(started.unwrap_or_else(|e| panic!("{name}: {e}")));
    }

    /// What the daemons have said.
    pub fn logs(&self) -> String {
        let mut all = String::new();
        for name in ["munged", "slurmctld", "node1", "node2"] {
            let path = self.folder().join(format!("{name}.out"));
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<_> = text.lines().rev().take(20).collect();
            let lines: Vec<_> = lines.into_iter().rev().collect();
            all += &format!("\n{name}:\n{}", lines.join("\n"));
        }
        all
    }

    /// A command of a user's, who has Slurm's commands and what is installed in the PATH.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("env");
        command.args(words).current_dir(self.folder().join("out"));
        Mode::Plain.apply(&mut command);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("SLURM_") || text.starts_with("SBATCH_") {
                command.env_remove(&name);
            }
        }
        let path = format!("{}/bin:/usr/bin:/bin", self.prefix().display());
        command
            .env_remove("LD_PRELOAD")
            .env("PATH", path)
            .env("SLURM_CONF", self.folder().join("slurm.conf"))
            // What goes between ranks stays on the loopback, which both leave out by default.
            .env("OMPI_MCA_btl", "self,vader,tcp")
            .env("OMPI_MCA_btl_tcp_if_include", "lo")
            .env("UCX_NET_DEVICES", "lo")
            .env("UCX_TLS", "tcp,self");
        command
    }

    /// Runs one to its end.
    pub fn run(&self, words: &[&str]) -> Outcome {
        child::run(&mut self.command(words), TIMEOUT)
    }

    /// The same, which must succeed; its standard output.
    pub fn done(&self, words: &[&str]) -> String {
        let outcome = self.run(words);
        outcome.must_succeed_at(format_args!("{words:?}: {}", self.logs()));
        outcome.stdout
    }

    /// Writes a script for all to run.
    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder().join(name);
        let prefix = self.prefix().display().to_string();
        std::fs::write(&path, text.replace("@PREFIX@", &prefix)).expect("a script");
        let may = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, may).expect("permissions");
        path
    }

    /// An unmodified program of a name of its own: `sleep`.
    pub fn sleeper(&self) -> PathBuf {
        let path = self.folder().join("sleeper");
        if !path.exists() {
            std::fs::copy("/bin/sleep", &path).expect("a copy");
        }
        path
    }

    /// Starts a job of sleepers, and waits until there are so many tasks.
    pub fn sleeping(&self, command: &mut Command, tasks: usize) -> Sleeping<'_> {
        let job = child::start(command, TIMEOUT);
        let began = Instant::now();
        loop {
            let tasks_now = tasks_of(&self.sleeper());
            if tasks_now.len() == tasks && tasks_now.iter().all(|t| asleep(t.pid)) {
                return Sleeping {
                    cluster: self,
                    job,
                    tasks: tasks_now,
                };
            }
            if began.elapsed() > PATIENCE {
                let outcome = job.finish();
                panic!("{} tasks: {outcome:?}{}", tasks_now.len(), self.logs());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// A job that waits to be looked at.
pub struct Sleeping<'a> {
    cluster: &'a Cluster,
    job: Running,
    /// Its tasks, by node and rank.
    pub tasks: Vec<Task>,
}

impl Sleeping<'_> {
    /// What `regall verify --all` says on each node, within the job.
    pub fn verified(&self) -> String {
        let job = self.tasks[0].variable("SLURM_JOB_ID").unwrap_or_default();
        let id = format!("--jobid={job}");
        self.cluster.done(&[
            "srun",
            "-Q",
            &id,
            "--overlap",
            "-N2",
            "-n2",
            "regall",
            "verify",
            "--all",
        ])
    }

    /// Lets it outlive the cluster; the numbers of its tasks. The launcher, which would wait for
    /// the nodes, is killed.
    pub fn abandoned(self) -> Vec<u32> {
        self.tasks.iter().map(|t| t.pid).collect()
    }

    /// Ends it, and waits until its tasks have gone; what the launcher has said.
    pub fn end(self) -> Outcome {
        let job = self.tasks[0].variable("SLURM_JOB_ID").unwrap_or_default();
        self.cluster.done(&["scancel", &job]);
        let outcome = self.job.finish();
        let began = Instant::now();
        while !tasks_of(&self.cluster.sleeper()).is_empty() {
            assert!(began.elapsed() < PATIENCE, "job {job} does not end");
            std::thread::sleep(Duration::from_millis(50));
        }
        outcome
    }
}

/// A task, as this host's kernel sees it.
pub struct Task {
    /// Here, not on its node.
    pub pid: u32,
    environment: Vec<String>,
}

impl Task {
    /// A variable that it was started with.
    pub fn variable(&self, name: &str) -> Option<String> {
        let of = |entry: &String| Some(entry.strip_prefix(name)?.strip_prefix('=')?.to_string());
        self.environment.iter().find_map(of)
    }

    /// Bytes of the library that it has mapped, and whether memory of its own is locked.
    pub fn mapped(&self, library: &Path) -> (u64, bool) {
        let all = procfs::smaps(self.pid).expect("a process");
        let name = library.display().to_string();
        let library = all.iter().filter(|v| v.name == name);
        let bytes = library.map(|v| v.end - v.start).sum();
        (bytes, all.iter().any(|v| v.name == "[heap]" && v.has("lo")))
    }
}

/// Whether a process is in the system call that it sleeps by: all before that is done.
fn asleep(pid: u32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    let number = call.split(' ').next().and_then(|n| n.parse().ok());
    number == Some(libc::SYS_clock_nanosleep)
}

fn tasks_of(program: &Path) -> Vec<Task> {
    let numbers = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = numbers.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let is = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|p| p == program);
    let mut all: Vec<_> = pids
        .filter(is)
        .filter_map(|pid| {
            let bytes = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let environment = text.split('\0').map(str::to_string).collect();
            Some(Task { pid, environment })
        })
        .collect();
    all.sort_by_key(|t: &Task| (t.variable("SLURMD_NODENAME"), t.variable("SLURM_PROCID")));
    all
}

/// A command that ends with the thread that starts it.
fn mortal(command: Command) -> Command {
    let mut all = Command::new("setpriv");
    all.args(["--pdeathsig", "KILL"]).arg(command.get_program());
    let path = std::env::var("PATH").unwrap_or_default();
    // Not everybody has the folder of daemons.
    all.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    all
}

/// What starts a command in a node's namespaces; all in there ends with it.
fn namespace() -> Command {
    let mut all = mortal(Command::new("unshare"));
    all.args([
        "--uts",
        "--pid",
        "--mount",
        "--mount-proc",
        "--fork",
        "--kill-child",
    ]);
    // SAFETY: a system call without memory.
    if unsafe { libc::geteuid() } != 0 {
        all.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    all
}

/// What is said of a Slurm in the guests of scripts/rdma-cluster, too.
const COMMON: &str = include_str!("../../scripts/rdma-cluster.d/slurm.conf");

/// For two nodes at addresses of the loopback.
const CONFIGURATION: &str = "\
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=@PORT0@
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
NodeName=node1 NodeAddr=127.0.0.1 Port=@PORT1@ CPUs=2
NodeName=node2 NodeAddr=127.0.0.1 Port=@PORT2@ CPUs=2
PartitionName=all Nodes=node1,node2 Default=YES State=UP
";
