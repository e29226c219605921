//! What tells a process to end: signals, and on Windows a console's events.

#[cfg(unix)]
pub use unix::{SIGNALS, prepare, send};
#[cfg(windows)]
pub use windows::{SIGNALS, prepare, send};

#[cfg(unix)]
mod unix {
    use std::process::Command;

    /// What a person or a service manager sends.
    pub const SIGNALS: [&str; 2] = ["TERM", "INT"];

    /// Makes a process that can be sent signals of its own.
    pub fn prepare(command: &mut Command) -> &mut Command {
        command
    }

    /// Sends a signal to the process with this id; returns whether there was one to receive it.
    pub fn send(signal: &str, id: u32) -> bool {
        let mut kill = Command::new("kill");
        kill.args([&format!("-{signal}"), &id.to_string()]).status().is_ok_and(|status| status.success())
    }
}

#[cfg(windows)]
mod windows {
    use std::{os::windows::process::CommandExt, process::Command};

    use windows_sys::Win32::System::{
        Console::{CTRL_BREAK_EVENT, GenerateConsoleCtrlEvent},
        Threading::CREATE_NEW_PROCESS_GROUP,
    };

    /// A group of its own does not receive Ctrl-C.
    pub const SIGNALS: [&str; 1] = ["TERM"];

    /// Makes a process that can be sent signals of its own.
    pub fn prepare(command: &mut Command) -> &mut Command {
        command.creation_flags(CREATE_NEW_PROCESS_GROUP)
    }

    /// Sends Ctrl-Break to the process with this id; returns whether the system delivers it, which needs a console.
    pub fn send(_: &str, id: u32) -> bool {
        // SAFETY: the function takes two numbers and returns an error for an id without a process.
        unsafe { GenerateConsoleCtrlEvent(CTRL_BREAK_EVENT, id) != 0 }
    }
}
