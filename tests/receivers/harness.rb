# Appended to the function of docs/how-to/receive-webhooks.md. `cases`: one case a line, one verdict a line;
# `serve`: a server that prints its port and answers 204 to what verifies and 401 to the rest.

require "json"

def text(encoded)
  encoded.unpack1("m").force_encoding("UTF-8")
end

# A secret stands behind "=", one of several behind a colon, anything else as JSON behind "!".
def secrets_in(field)
  return text(field[1..]) if field.start_with?("=")
  return JSON.parse(text(field[1..])) if field.start_with?("!")

  field.split(",").map { |each| text(each[1..]) }
end

def verdict(secrets, forms, now)
  said = forms.map { |form| verify(secrets, *form, now: now) }.uniq
  said.size == 1 ? said[0] : "not alike"
rescue ArgumentError
  "refused"
end

Whole = Struct.new(:env) # as Rack::Request

# What was not refused, although it is no form of headers or of a body.
def taken(secrets, headers, body)
  wrong = [nil, 5, {}, []].map { |other| [headers, other] }
  wrong += [nil, 5, "x: y", ["x: y"], [["x"]], Object.new].map { |other| [other, body] }
  wrong += [1, nil, {}].map { |other| [{ "HTTP_X_SERVICE_WEBHOOK_TIMESTAMP" => other }, body] }
  wrong.filter_map do |form|
    "#{verify(secrets, *form)} for #{form}"
  rescue ArgumentError => e
    e.message unless e.message.include?("must be")
  end
end

def cases
  $stdin.each_line(chomp: true) do |line|
    now, secrets, pairs, encoded, events = line.split("\t", -1)
    body = encoded.unpack1("m")
    env = { "rack.input" => $stdin, "rack.version" => [1, 3], "REQUEST_METHOD" => "POST" }
    given = {}
    pairs.split(",").each do |pair|
      name, value = pair.split(":", -1).map { |each| text(each) }
      key = "HTTP_#{name.upcase.tr("-", "_")}"
      env[key] = env.key?(key) ? "#{env[key]}, #{value}" : value # as Rack's servers do
      (given[name] ||= []) << value
    end
    forms = [env, Whole.new(env), given, given.to_a, given.transform_keys(&:to_sym)].map { |headers| [headers, body] }
    said = verdict(secrets_in(secrets), forms + JSON.parse(text(events)).map { |event| [event] }, now.to_i)
    wrong = said == "refused" ? [] : taken(secrets_in(secrets), env, body)
    puts wrong.first || said
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
