# Homebrew formula for a tap.
class Bitnet < Formula
  desc "Runs 1.58-bit language models on ordinary CPUs"
  homepage "@HOME@"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    on_arm do
      url "@URL@/bitnet-@VERSION@-aarch64-macos.tar.gz"
      sha256 "@SHA256 aarch64-macos.tar.gz@"
    end
    on_intel do
      url "@URL@/bitnet-@VERSION@-x86_64-macos.tar.gz"
      sha256 "@SHA256 x86_64-macos.tar.gz@"
    end
  end
  on_linux do
    on_arm do
      url "@URL@/bitnet-@VERSION@-aarch64-linux.tar.gz"
      sha256 "@SHA256 aarch64-linux.tar.gz@"
    end
    on_intel do
      url "@URL@/bitnet-@VERSION@-x86_64-linux.tar.gz"
      sha256 "@SHA256 x86_64-linux.tar.gz@"
    end
  end

  def install
    libexec.install Dir["bitnet", "bitnet.cubins"]
    bin.write_exec_script libexec/"bitnet"
    man1.install "bitnet.1"
    bash_completion.install "completions/bitnet.bash" => "bitnet"
    fish_completion.install "completions/bitnet.fish"
    zsh_completion.install "completions/_bitnet"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/bitnet --version")
  end
end
