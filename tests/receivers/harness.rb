# Appended to the function of docs/how-to/receive-webhooks.md. `cases`: one case a line, one verdict a line;
# `serve`: a server that prints its port and answers 204 to what verifies and 401 to the rest.

def text(encoded)
  encoded.unpack1("m").force_encoding("UTF-8")
end

# An encoded secret may be empty, so each stands behind a colon.
def secrets_in(field)
  field.split(",").map { |each| text(each[1..]) }
end

def cases
  $stdin.each_line(chomp: true) do |line|
    now, secrets, pairs, body = line.split("\t", -1)
    env = {}
    pairs.split(",").each do |pair|
      name, value = pair.split(":", -1).map { |each| text(each) }
      key = "HTTP_#{name.upcase.tr("-", "_")}"
      env[key] = env.key?(key) ? "#{env[key]}, #{value}" : value # as Rack's servers do
    end
    puts verify(secrets_in(secrets), env, body.unpack1("m"), now: now.to_i)
  end
end

def serve
  require "webrick"
  secrets = secrets_in(ARGV[1])
  quiet = WEBrick::Log.new(nil, WEBrick::BasicLog::FATAL)
  server = WEBrick::HTTPServer.new(BindAddress: "127.0.0.1", Port: 0, Logger: quiet, AccessLog: [])
  server.mount_proc("/") do |request, response|
    now = Time.now.to_i + (request.path.start_with?("/late") ? 302 : 0)
    # meta_vars: the names and values of Rack's environment.
    known = verify(secrets, request.meta_vars, request.body || "", now: now)
    response.status = known ? 204 : 401
  end
  $stdout.puts server.listeners[0].addr[1]
  $stdout.flush
  server.start
end

ARGV[0] == "cases" ? cases : serve
