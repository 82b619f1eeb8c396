"""Instances of native types, for calls of their methods: Python source for each, evaluated inside the guard."""

from __future__ import annotations

SOURCES = """
own_socket()
__import__('_socket').socket()
__import__('_socket').socket(2, 2)
__import__('_io').FileIO(INSIDE, 'r+')
__import__('_io').BufferedReader(__import__('_io').FileIO(INSIDE))
__import__('_io').BufferedWriter(__import__('_io').FileIO(INSIDE, 'r+'))
__import__('_io').BufferedRandom(__import__('_io').FileIO(INSIDE, 'r+'))
__import__('_io').BufferedRWPair(__import__('_io').BytesIO(), __import__('_io').BytesIO())
__import__('_io').TextIOWrapper(__import__('_io').BytesIO())
__import__('_io').BytesIO(b'data').getbuffer()
__import__('_io').IncrementalNewlineDecoder(None, True)
__import__('posix').scandir(ROOT)
next(__import__('posix').scandir(ROOT))
__import__('posix').stat(INSIDE)
__import__('posix').statvfs(INSIDE)
__import__('posix').times()
__import__('posix').uname()
__import__('posix').terminal_size((1, 1))
__import__('posix').sched_param(0)
__import__('_sqlite3').connect(':memory:')
__import__('_sqlite3').connect(':memory:').cursor()
__import__('_sqlite3').Row(__import__('_sqlite3').connect(':memory:').execute('select 1'), (1,))
own_database().execute('create table t(b)').connection.execute("insert into t values (x'00')").connection.blobopen('t', 'b', 1)
__import__('_ssl')._SSLContext(2)
__import__('ssl').SSLContext(16)
__import__('ssl').SSLContext(16).wrap_bio(__import__('ssl').MemoryBIO(), __import__('ssl').MemoryBIO())._sslobj
__import__('_ssl').MemoryBIO()
__import__('ssl').SSLContext(16).wrap_socket(own_socket(), server_hostname='x', do_handshake_on_connect=False)._sslobj
__import__('select').epoll()
__import__('select').poll()
__import__('mmap').mmap(-1, 4096)
__import__('mmap').mmap(own_file(), 4)
__import__('_thread').allocate_lock()
__import__('_thread').RLock()
__import__('_thread')._local()
__import__('_asyncio').Future(loop=__import__('asyncio').new_event_loop())
__import__('_asyncio').Task(__import__('asyncio').sleep(0), loop=__import__('asyncio').new_event_loop())
iter(__import__('_asyncio').Future(loop=__import__('asyncio').new_event_loop()))
__import__('_contextvars').Context()
__import__('_contextvars').ContextVar('v')
__import__('_contextvars').ContextVar('v').set(1)
__import__('_elementtree').XMLParser()
__import__('_elementtree').Element('a')
__import__('_elementtree').Element('a').iter()
__import__('_elementtree').TreeBuilder()
__import__('pyexpat').ParserCreate()
__import__('_pickle').Pickler(__import__('io').BytesIO())
__import__('_pickle').Pickler(__import__('io').BytesIO()).memo
__import__('_pickle').Unpickler(__import__('io').BytesIO())
__import__('_pickle').Unpickler(__import__('io').BytesIO()).memo
__import__('_json').make_scanner(__import__('json').JSONDecoder())
__import__('_json').make_encoder(None, repr, repr, None, ':', ',', False, False, True)
__import__('_csv').reader([])
__import__('_csv').writer(__import__('io').StringIO())
__import__('_csv').Dialect()
__import__('_hashlib').new('sha256')
__import__('_hashlib').hmac_new(b'k', b'', 'sha256')
__import__('_md5').md5()
__import__('_sha1').sha1()
__import__('_sha3').sha3_256()
__import__('_sha3').shake_128()
__import__('_blake2').blake2b()
__import__('_blake2').blake2s()
__import__('hashlib').sha256()
__import__('_bz2').BZ2Compressor()
__import__('_bz2').BZ2Decompressor()
__import__('_lzma').LZMACompressor()
__import__('_lzma').LZMADecompressor()
__import__('zlib').compressobj()
__import__('zlib').decompressobj()
__import__('_random').Random()
__import__('_queue').SimpleQueue()
__import__('_struct').Struct('i')
__import__('_struct').iter_unpack('b', b'data')
__import__('array').array('b', b'data')
iter(__import__('array').array('b', b'data'))
__import__('_decimal').Decimal(1)
__import__('_decimal').Context()
__import__('_decimal').localcontext()
__import__('_decimal').Context().flags
__import__('_datetime').datetime(2000, 1, 1)
__import__('_datetime').date(2000, 1, 1)
__import__('_datetime').date(2000, 1, 1).isocalendar()
__import__('_datetime').time()
__import__('_datetime').timedelta()
__import__('_datetime').timezone.utc
__import__('_zoneinfo').ZoneInfo('UTC')
__import__('_functools').partial(len)
__import__('_functools').cmp_to_key(len)(1)
__import__('functools').lru_cache(len)
__import__('_collections').deque([1])
iter(__import__('_collections').deque([1]))
reversed(__import__('_collections').deque([1]))
__import__('_collections').OrderedDict(a=1)
iter(__import__('_collections').OrderedDict(a=1))
__import__('_collections').OrderedDict(a=1).keys()
__import__('_collections').OrderedDict(a=1).items()
__import__('_collections').OrderedDict(a=1).values()
__import__('_collections').defaultdict(list)
__import__('_operator').itemgetter(0)
__import__('_operator').attrgetter('a')
__import__('_operator').methodcaller('a')
__import__('re').compile('a')
__import__('re').match('a', 'a')
__import__('re').compile('a').scanner('a')
__import__('_lsprof').Profiler()
__import__('_multiprocessing').SemLock(1, 1, 1, '/oracle', True)
__import__('_multibytecodec').__create_codec
__import__('codecs').lookup('gbk').incrementalencoder()
__import__('codecs').lookup('gbk').incrementaldecoder()
__import__('codecs').lookup('gbk').streamreader(__import__('io').BytesIO())
__import__('codecs').lookup('gbk').streamwriter(__import__('io').BytesIO())
__import__('_codecs_cn').getcodec('gbk')
__import__('_symtable').symtable('a', 'b', 'exec')
__import__('_tokenize').TokenizerIter('a')
__import__('_tokenize').TokenizerIter(__import__('io').StringIO('a').readline, extra_tokens=False)
__import__('_abc')._abc_data()
__import__('_ast').AST()
__import__('pwd').struct_passwd((0,) * 7)
__import__('resource').getrusage(0)
__import__('time').gmtime(0)
__import__('_curses').ncurses_version
__import__('unicodedata').ucd_3_2_0
__import__('_weakref').ref(Mischief)
__import__('_weakref').proxy(Mischief)
__import__('weakref').proxy(set())
__import__('types').SimpleNamespace(a=1)
__import__('types').MappingProxyType({})
__import__('types').MethodType(len, 1)
__import__('types').GenericAlias(list, (int,))
__import__('types').ModuleType('m')
__import__('types').CellType()
__import__('types').FunctionType(CODE, {})
__import__('sys').implementation
__import__('sys').flags
__import__('sys').version_info
__import__('sys').float_info
__import__('sys').hash_info
__import__('sys').thread_info
__import__('sys').int_info
__import__('sys')._getframe()
__import__('sys').exc_info
__import__('itertools').count()
__import__('itertools').cycle([1])
__import__('itertools').repeat(1)
__import__('itertools').chain([1])
__import__('itertools').tee([1])[0]
__import__('itertools').groupby([1])
next(__import__('itertools').groupby([1]))[1]
__import__('itertools').islice([1], 1)
__import__('itertools').starmap(len, [])
__import__('itertools').product([1])
__import__('itertools').permutations([1])
__import__('itertools').combinations([1], 1)
__import__('itertools').combinations_with_replacement([1], 1)
__import__('itertools').accumulate([1])
__import__('itertools').compress([1], [1])
__import__('itertools').dropwhile(len, [])
__import__('itertools').takewhile(len, [])
__import__('itertools').filterfalse(len, [])
__import__('itertools').pairwise([1])
__import__('itertools').zip_longest([1])
(lambda: 0).__code__
(lambda: 0).__code__.co_lines()
(lambda: 0).__code__.co_positions()
(lambda: 0)
(lambda x: lambda: x)(1).__closure__[0]
(i for i in [1])
Mischief().act
Mischief.act
Mischief()
len
list.append
type.__dict__['__name__']
type.__call__
dict.__dict__['fromkeys']
[].append
[].__len__
int
1
1.5
1j
True
None
...
NotImplemented
'text'
b'data'
bytearray(b'data')
memoryview(bytearray(b'data'))
[1]
(1,)
{1}
frozenset((1,))
{'a': 1}
{'a': 1}.keys()
{'a': 1}.values()
{'a': 1}.items()
iter({'a': 1})
iter({'a': 1}.values())
iter({'a': 1}.items())
reversed({'a': 1})
reversed({'a': 1}.values())
reversed({'a': 1}.items())
iter([1])
reversed([1])
iter((1,))
iter({1})
iter('text')
iter('\\u1234')
iter(b'data')
iter(bytearray(b'data'))
iter(memoryview(b'data'))
iter(len, 0)
iter(range(1))
iter(range(2**70))
range(1)
slice(1)
enumerate([1])
zip([1])
map(len, [])
filter(len, [])
reversed((1,))
object()
super(int, 1)
property(len)
staticmethod(len)
classmethod(len)
sys
list[int]
iter(list[int])
int | str
BaseException()
OSError(1, 'x')
SyntaxError('x')
UnicodeDecodeError('u', b'', 0, 1, 'r')
UnicodeEncodeError('u', '', 0, 1, 'r')
UnicodeTranslateError('', 0, 1, 'r')
StopIteration()
SystemExit()
ImportError()
AttributeError()
NameError()
KeyError()
BaseExceptionGroup('g', [ValueError()])
""".strip().splitlines()

CONSTRUCTIONS = "() (0) ('') (b'') ([]) (len) (len,[]) ([1],1) ((0,)*7) ((0,)*10) ((0,)*20)".split()


def discover(kinds, evaluate):
    """Return for each type the source of an instance; types without one are left out."""
    found = {}
    for source in SOURCES:
        try:
            found.setdefault(type(evaluate(source)), source)
        except BaseException:
            continue
    for kind, name in kinds.items():
        for construction in CONSTRUCTIONS:
            if kind in found:
                break
            try:
                if type(evaluate(f"KIND({name!r}){construction}")) is kind:
                    found[kind] = f"KIND({name!r}){construction}"
            except BaseException:
                continue
    return found
