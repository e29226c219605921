//! The container image of `deploy/Containerfile`, for one architecture or for several under one name.

use std::process::Command;

use anyhow::Result;
use bitnet_workspace::{root, run};
use clap::Args;

/// Build the image of deploy/Containerfile with docker for this machine, or join the images of several machines
#[derive(Debug, Args)]
pub(crate) struct Image {
    /// Name and tag, like registry.example/owner/bitnet:0.1.0; an image of one architecture has it as a suffix
    #[arg(long)]
    tag: String,
    /// Also upload it; needs `docker login`
    #[arg(long)]
    push: bool,
    /// Join uploaded images of these architectures under the tag, instead of building one
    #[arg(long, value_name = "ARCH", value_delimiter = ',', conflicts_with = "push")]
    join: Vec<String>,
}

impl Image {
    pub(crate) fn run(&self) -> Result<()> {
        for command in self.commands(std::env::consts::ARCH) {
            let mut docker = Command::new("docker");
            docker.args(command).current_dir(root());
            run(docker)?;
        }
        Ok(())
    }

    /// What docker is asked, on a machine with this architecture.
    fn commands(&self, here: &str) -> Vec<Vec<String>> {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let of = |arch: &str| format!("{}-{arch}", self.tag);
        if !self.join.is_empty() {
            let mut join = words(&["buildx", "imagetools", "create", "--tag", &self.tag]);
            join.extend(self.join.iter().map(|arch| of(arch)));
            return vec![join];
        }
        let build = words(&["build", "--file", "deploy/Containerfile", "--tag", &of(here), "."]);
        let mut commands = vec![build];
        if self.push {
            commands.push(words(&["push", &of(here)]));
        }
        commands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_two_machines_are_joined_under_the_names_that_they_were_pushed_with() {
        let tag = "registry.example/bitnet:0.1.0".to_owned();
        let image = |push, join: &[&str]| Image {
            tag: tag.clone(),
            push,
            join: join.iter().map(|&arch| arch.to_owned()).collect(),
        };
        let built: Vec<String> = ["x86_64", "aarch64"]
            .iter()
            .map(|arch| image(true, &[]).commands(arch).last().unwrap().last().unwrap().clone())
            .collect();
        let joined = image(false, &["x86_64", "aarch64"]).commands("any").concat();
        assert_eq!(joined[joined.len() - 2..], built);
        assert_eq!(image(false, &[]).commands("x86_64").len(), 1, "nothing is uploaded unless asked for");
    }
}
